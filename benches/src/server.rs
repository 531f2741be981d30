//! Real servers: on a free port of 127.0.0.1, in a folder of their own, ended by their own process id.

use crate::Result;
use crate::resp::Client;
use serde::Deserialize;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server may take to answer its first PING, under valgrind too.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// How often a starting server is asked.
const START_POLL: Duration = Duration::from_millis(20);

/// A server program.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
}

/// How a server is started.
#[derive(Default)]
pub struct Launch<'a> {
    /// What runs the server, such as valgrind, with its options.
    pub runner: &'a [String],
    pub modules: &'a [PathBuf],
    /// Further words of the command line.
    pub options: &'a [&'a str],
}

/// A running server; dropped, it ends.
pub struct Server {
    process: Child,
    folder: PathBuf,
    pub port: u16,
}

impl Server {
    pub fn start(program: &Program, launch: &Launch) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::temp_dir().join(format!(
            "redis-rl-bench-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir_all(&folder)?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();

        let mut words: Vec<String> = launch.runner.to_vec();
        words.push(program.path.display().to_string());
        for (option, value) in [
            ("--port", port.to_string().as_str()),
            ("--bind", "127.0.0.1"),
            ("--save", ""),
            ("--dir", &folder.display().to_string()),
            ("--logfile", &folder.join("log").display().to_string()),
        ] {
            words.extend([option.to_owned(), value.to_owned()]);
        }
        words.extend(launch.options.iter().map(|&word| word.to_owned()));
        for module in launch.modules {
            words.extend(["--loadmodule".to_owned(), module.display().to_string()]);
        }
        let process = Command::new(&words[0])
            .args(&words[1..])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", words[0]))?;
        let mut server = Self {
            process,
            folder,
            port,
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.process.try_wait()? {
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                let reason = log.lines().rev().take(3).collect::<Vec<_>>().join(" / ");
                return Err(format!("the server ended ({status}): {reason}").into());
            }
            let answers = Client::connect(self.port).and_then(|mut client| client.call(&["PING"]));
            if answers.is_ok() {
                return Ok(());
            }
            sleep(START_POLL);
        }
        Err("the server did not answer".into())
    }

    pub fn client(&self) -> Result<Client> {
        Client::connect(self.port)
    }

    /// "Redis 7.0.15", "Valkey 8.1.1".
    pub fn version(&self) -> Result<String> {
        let mut client = self.client()?;
        if let Ok(version) = client.info("server", "valkey_version") {
            return Ok(format!("Valkey {version}"));
        }
        Ok(format!("Redis {}", client.info("server", "redis_version")?))
    }

    /// Ends the server in its own way, so that what it writes at its end is written.
    pub fn shut_down(mut self) -> Result<()> {
        // The connection closes instead of an answer.
        let _ = self.client()?.call(&["SHUTDOWN", "NOSAVE"]);
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The servers that tests/servers/fetch.py unpacked.
#[derive(Deserialize)]
struct Fetched {
    server: Option<PathBuf>,
    skipped: Option<String>,
}

/// REDIS_SERVER, or redis-server on PATH, and the fetched ones.
pub fn known_programs(repository: &Path) -> Result<Vec<Program>> {
    let first = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
    let mut paths = vec![on_path(Path::new(&first))];
    let list = repository.join("target/servers/servers.json");
    if let Ok(text) = fs::read_to_string(list) {
        let fetched: Vec<Fetched> = serde_json::from_str(&text)?;
        for server in fetched {
            if let (Some(path), None) = (server.server, server.skipped)
                && !paths.contains(&path)
            {
                paths.push(path);
            }
        }
    }
    Ok(paths.into_iter().map(|path| Program { path }).collect())
}

/// The full path of a program, since a server runs in a folder of its own.
pub fn on_path(program: &Path) -> PathBuf {
    if program.components().count() > 1 {
        return fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
    }
    std::env::var_os("PATH")
        .iter()
        .flat_map(std::env::split_paths)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .unwrap_or_else(|| program.to_owned())
}
