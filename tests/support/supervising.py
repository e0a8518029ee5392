"""The process that supervises a worker, for tests that run in the worker."""

#: The text of a function for a module of tests.
SUPERVISOR = '''
def supervisor():
    """The process that has started this one, by way of the process that forks."""
    from pathlib import Path

    parent = os.getppid()
    stat = Path(f"/proc/{parent}/stat")  # where there is none, nothing forks
    return int(stat.read_text().rpartition(")")[2].split()[1]) if stat.exists() else parent
'''
