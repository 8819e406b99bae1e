"""The engine's serving socket: the Open Inference Protocol, version 2, over HTTP/1.1."""
