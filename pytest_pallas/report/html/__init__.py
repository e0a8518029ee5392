"""``--pallas-html``: the records of a session as one self-contained page. See docs/report.md."""
