"""Tests in a process of their own, so that what ends the process ends one test.

``decision`` says which, ``remembered`` what earlier sessions knew of them. In the process that
reports, ``isolator`` hands a test to a worker and puts the worker's reports in place of its own;
``deaths`` says what became of a worker that did not answer. In the worker, ``worker`` is a pytest
session that runs what it is told to, and ``alarm`` ends it when a step does not end. ``leaks``
compares the state of a process before and after a check, in both.
"""
