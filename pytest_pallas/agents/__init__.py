"""Doors for agents: commands with JSON, and a server of the Model Context Protocol."""
