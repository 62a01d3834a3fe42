"""Every error a user of Cleave can meet, in one tree."""


class CleaveError(Exception):
    """Something Cleave cannot do; the text says what was wrong and what to do about it."""


class ConfigError(CleaveError):
    """A setting, argument or environment value is unusable."""


class PlanError(CleaveError):
    """Work cannot be cut so that it fits the devices.

    Attributes:
        fact: What does not fit.
    """

    def __init__(self, fact: str, remedy: str = "") -> None:
        """Keep the fact; the text says both."""
        self.fact = fact
        super().__init__(f"{fact}: {remedy}" if remedy else fact)


class ProgramError(CleaveError):
    """A program uses an unknown op, or an op in a way it is not defined."""


class ProtocolError(CleaveError):
    """A message from the other side breaks the protocol; its connection is closed."""


class VersionError(ProtocolError):
    """The other side speaks another version of the protocol."""


class AuthError(CleaveError):
    """The join token is missing or wrong."""


class DeviceError(CleaveError):
    """A device could not run a task."""


class DeviceMemoryError(DeviceError):
    """A task needs more memory than the device lends.

    Attributes:
        needed_bytes: What the task would have needed on top of what is held.
        budget_bytes: What the device lends in total.
    """

    def __init__(self, needed_bytes: int, budget_bytes: int) -> None:
        """Keep both figures; the text names them."""
        self.needed_bytes = needed_bytes
        self.budget_bytes = budget_bytes
        super().__init__(
            f"needs {needed_bytes} bytes more, but the device lends {budget_bytes} in total: "
            "lend more with --memory, or let the server cut smaller tasks"
        )


class NoDevicesError(CleaveError):
    """Work was submitted, no device is there and the host may not step in."""


class WorkFailedError(CleaveError):
    """Work failed on devices and on the host alike."""


class OffloadError(CleaveError):
    """A model, layer or argument cannot be offloaded as asked."""
