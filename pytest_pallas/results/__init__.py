"""Results of a run as files: the document of its end, and the journal of a run that goes on."""

from pytest_pallas.results.journal import Journal, partial_path
from pytest_pallas.results.model import Failure, FinishedTest, RunResults
from pytest_pallas.results.reading import read_results

__all__ = ["Failure", "FinishedTest", "Journal", "RunResults", "partial_path", "read_results"]
