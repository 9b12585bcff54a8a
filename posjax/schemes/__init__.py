"""One file per scheme: pure functions on top, `scheme(...)` last. The folder is the registry."""
