//! Real servers: on a free port of 127.0.0.1, in their own folders, ended by their own process id.

use anyhow::{Context, Result, bail};
use redis::cmd;
use serde::Deserialize;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take to answer its first PING, under valgrind too.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// How often a server is asked while something is awaited.
const POLL: Duration = Duration::from_millis(20);

/// How long an answer may take before a run is given up.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection for setting up and asking.
pub type Client = redis::Connection;

/// A running server; dropped, it ends.
pub struct Server {
    process: Child,
    folder: TempDir,
    pub port: u16,
}

impl Server {
    pub fn start(program: &Path, modules: &[&Path], options: &[&str]) -> Result<Self> {
        Self::start_by(Command::new(program), modules, options)
    }

    /// Starts a server by a command that may run it under something else.
    pub fn start_by(mut command: Command, modules: &[&Path], options: &[&str]) -> Result<Self> {
        let folder = TempDir::new()?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        command
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
            ])
            .args(["--logfile", "log", "--dir"])
            .arg(folder.path())
            .args(options)
            .args(
                modules
                    .iter()
                    .flat_map(|module| [Path::new("--loadmodule"), module]),
            )
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = command.spawn().with_context(|| format!("{command:?}"))?;
        let mut server = Self {
            process,
            folder,
            port,
        };
        let deadline = Instant::now() + START_PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = server.process.try_wait()? {
                let log = fs::read_to_string(server.folder.path().join("log")).unwrap_or_default();
                let reason = log.lines().rev().take(3).collect::<Vec<_>>().join(" / ");
                bail!("the server ended ({status}): {reason}");
            }
            if server
                .client()
                .is_ok_and(|mut client| cmd("PING").exec(&mut client).is_ok())
            {
                return Ok(server);
            }
            sleep(POLL);
        }
        bail!("the server did not answer")
    }

    pub fn client(&self) -> Result<Client> {
        let client = redis::Client::open(("127.0.0.1", self.port))?.get_connection()?;
        client.set_read_timeout(Some(PATIENCE))?;
        Ok(client)
    }

    /// "Redis 7.0.15", "Valkey 8.1.1".
    pub fn version(&self) -> Result<String> {
        let mut client = self.client()?;
        if let Ok(version) = info(&mut client, "server", "valkey_version") {
            return Ok(format!("Valkey {version}"));
        }
        Ok(format!(
            "Redis {}",
            info(&mut client, "server", "redis_version")?
        ))
    }

    /// Ends the server in its own way, so that what it writes at its end is written.
    pub fn shut_down(mut self) -> Result<()> {
        // The connection closes instead of an answer.
        let _ = cmd("SHUTDOWN").arg("NOSAVE").exec(&mut self.client()?);
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A field of INFO.
pub fn info(client: &mut Client, section: &str, field: &str) -> Result<String> {
    let text: String = cmd("INFO").arg(section).query(client)?;
    // A module's commands are in commandstats as the module spells them, the server's own in lower case.
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case(field))
        .map(|(_, value)| value.to_owned())
        .with_context(|| format!("INFO {section} lacks {field}"))
}

/// Waits until a field of INFO is `value`.
pub fn await_info(client: &mut Client, section: &str, field: &str, value: &str) -> Result<()> {
    let deadline = Instant::now() + START_PATIENCE;
    while info(client, section, field)? != value {
        if Instant::now() > deadline {
            bail!("{field} did not become {value}");
        }
        sleep(POLL);
    }
    Ok(())
}

/// Loads a script of the repository; its digest, empty if there is none.
pub fn loaded_script(client: &mut Client, script: Option<&Path>) -> Result<String> {
    let Some(script) = script else {
        return Ok(String::new());
    };
    let text =
        fs::read_to_string(repository().join(script)).with_context(|| format!("{script:?}"))?;
    Ok(cmd("SCRIPT").arg("LOAD").arg(text).query(client)?)
}

/// The folder of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The servers that tests/servers/fetch.py unpacked.
#[derive(Deserialize)]
struct Fetched {
    server: Option<PathBuf>,
    skipped: Option<String>,
}

/// REDIS_SERVER, or redis-server on PATH, and the fetched ones.
pub fn known_programs() -> Result<Vec<PathBuf>> {
    let first = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
    // The full path, since a server runs in its own folder.
    let mut programs = vec![which::which(&first).with_context(|| format!("{first:?}"))?];
    if let Ok(text) = fs::read_to_string(repository().join("target/servers/servers.json")) {
        let fetched: Vec<Fetched> = serde_json::from_str(&text)?;
        let whole = fetched
            .into_iter()
            .filter(|server| server.skipped.is_none());
        for program in whole.filter_map(|server| server.server) {
            if !programs.contains(&program) {
                programs.push(program);
            }
        }
    }
    Ok(programs)
}
