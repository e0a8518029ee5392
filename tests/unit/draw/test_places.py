"""The text of ``--pallas-database``, and that no message shows a password."""

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.database import parse_places


@pytest.mark.parametrize(
    ("text", "kind", "address", "shown"),
    [
        ("some/dir", "folder", "some/dir", "some/dir"),
        ("/some/dir", "folder", "/some/dir", "/some/dir"),
        ("C:\\dir", "folder", "C:\\dir", "C:\\dir"),
        ("file:some/dir", "folder", "some/dir", "some/dir"),
        ("file:///some/dir", "folder", "/some/dir", "/some/dir"),
        ("none", "none", "", "none"),
        ("github:owner/a.repo", "github", "owner/a.repo", "github:owner/a.repo"),
        ("redis://host", "redis", "redis://host", "redis://host"),
        ("redis://[::1]:1/2", "redis", "redis://[::1]:1/2", "redis://[::1]:1/2"),
        ("redis://:pw@host:1/2", "redis", "redis://:pw@host:1/2", "redis://***@host:1/2"),
        ("redis://h?password=pw", "redis", "redis://h?password=pw", "redis://h"),
        ("rediss://me:pw@host", "redis", "rediss://me:pw@host", "rediss://***@host"),
        ("unix:///run/a?db=1", "redis", "unix:///run/a?db=1", "unix:///run/a"),
    ],
)
def test_each_form_gives_kind_address_and_safe_text(text, kind, address, shown):
    (place,) = parse_places(text)
    assert (place.kind, place.address, place.shown) == (kind, address, shown)
    assert place.read_only == (kind == "github")
    assert "pw" not in repr(place)


def test_a_list_and_what_is_read_only():
    places = parse_places("dir, readonly+redis://:pw@host, readonly+readonly+other,")
    assert [(place.shown, place.read_only) for place in places] == [
        ("dir", False),
        ("readonly+redis://***@host", True),
        ("readonly+other", True),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mysql://host/pw", "unknown scheme mysql:"),
        ("s3:bucket", "unknown scheme s3:"),
        ("readonly+http://host", "unknown scheme http:"),
        (",", "gives no database"),
        ("file:", "has no folder"),
        ("dir,none", "none must stand alone"),
        ("readonly+none", "none must stand alone"),
        ("github:owner", "github:OWNER/REPO"),
        ("github:https://github.com/owner/repo", "github:OWNER/REPO"),
        ("redis://", "must be a host"),
        ("redis://host/name", "at most a number"),
        ("redis://host?decode_responses=1", "leave out decode_responses"),
        ("unix://", "has no socket"),
        # Where a password that is not quoted may end up.
        ("redis://:p/pw@host", "must be written %2F"),
        ("redis://:p?pw@host", "must be written %2F"),
        ("redis://:p#pw@host", "must be written %2F"),
        ("redis://me:12/pw@host", "must be written %2F"),
        ("redis://me:12?pw@host", "must be written %2F"),
        ("redis://:pw,pw@host", "number"),
        ("redis://me:12,pw@host:6379", "as %2C"),
        ("redis://me:12,pw:pw@host", "as %2C"),
        ("redis://:pw@host:port", "the port must be a number"),
        ("redis://:[pw@host", "cannot read this URL"),
    ],
)
def test_a_wrong_one(text, why):
    with pytest.raises(OptionError) as caught:
        parse_places(text)
    assert why in str(caught.value)
    assert "pw" not in str(caught.value)
