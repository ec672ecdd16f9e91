"""The reader: quality of experience, and timeouts of stalled answers."""

from tandem.policies.reader.quality import Quality, ReaderStream, assess, buffers, read_times

__all__ = ["Quality", "ReaderStream", "assess", "buffers", "read_times"]
