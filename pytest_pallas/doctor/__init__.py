"""``pytest --pallas-doctor``: versions, devices and backends of this machine, for a bug report.

``facts`` finds out what is installed, ``trials`` tries a tiny kernel on each backend, ``report``
makes text of both.
"""
