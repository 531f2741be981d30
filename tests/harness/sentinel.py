"""A dedicated Sentinel that watches one master."""

from .server import HOST, LOG_NAME, Server

NAME = "limits"
CONFIG_NAME = "sentinel.conf"
DOWN_AFTER_MS = 500
FAILOVER_TIMEOUT_MS = 5_000


class Sentinel(Server):
    """Fails over alone (quorum 1) once the master was silent for DOWN_AFTER_MS."""

    def __init__(self, master: Server) -> None:
        super().__init__(with_module=False, executable=master.executable)
        self._master_port_at_first = master.port

    def command_line(self) -> list[str]:
        lines = [
            f"port {self.port}",
            f"bind {HOST}",
            f"dir {self.directory}",
            f"logfile {self.directory / LOG_NAME}",
            f"sentinel monitor {NAME} {HOST} {self._master_port_at_first} 1",
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}",
        ]
        config = self.directory / CONFIG_NAME
        config.write_text("\n".join(lines) + "\n")
        return [self.executable, str(config), "--sentinel"]

    def master_port(self) -> int:
        """The port of the master as clients are told."""
        with self.raw_connection() as connection:
            _, port = connection.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(port)

    def replica_ports(self) -> list[int]:
        with self.raw_connection() as connection:
            replicas = connection.call("SENTINEL", "REPLICAS", NAME)
        fields = [dict(zip(replica[::2], replica[1::2])) for replica in replicas]
        return [int(replica[b"port"]) for replica in fields if replica[b"master-link-status"] == b"ok"]
