"""Engines that turn a region into something that runs: code generation lives here."""
