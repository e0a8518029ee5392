"""Tests in a process of their own, so that a crash or a hang ends only one test."""
