"""The engine around a model: sessions, paged memory, batching. No torch in here."""
