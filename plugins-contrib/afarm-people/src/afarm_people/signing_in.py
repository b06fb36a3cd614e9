"""Sign-in links, sessions and form tokens.

Of secrets only digests are stored, and they are compared in constant time. A secret has 160 random bits, so that nobody
can search for what a plain digest is of. A link is `/in/NUMBER.SECRET`, with the person's number; a session's cookie
`NUMBER.SECRET` likewise, so that nothing is looked up by a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from afarm_people.store import Person, ProjectStore

ORGANISER, JOIN, OPEN = "organiser", "join", "open"
"""The names of the project's secrets: of the links of the organiser, of who joins, and of a page for one person."""


def new_secret() -> str:
    return secrets.token_urlsafe(20)


def digest_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def matches(secret: str, stored: str) -> bool:
    """Compare a secret with a stored digest; an empty one matches nothing."""
    return bool(stored) & hmac.compare_digest(digest_secret(secret), stored or "0")


def form_token(session: str) -> str:
    """The token that the forms of a session carry."""
    return hmac.new(session.encode(), b"afarm-people form", hashlib.sha256).hexdigest()


def renew_secret(store: ProjectStore, name: str) -> str:
    """Make a secret of the project's anew."""
    secret = new_secret()
    store.set(name, digest_secret(secret))
    return secret


def renew_link(store: ProjectStore, person: Person) -> str:
    """Make a person's link anew, and end what the old one had opened. Returns its path."""
    secret = new_secret()
    with store.writing() as db:
        db.execute("UPDATE people SET secret = ? WHERE id = ?", (digest_secret(secret), person.id))
        db.execute("DELETE FROM sessions WHERE person = ?", (person.id,))
    return f"/in/{person.id}.{secret}"


def person_of_link(store: ProjectStore, link: str) -> Person | None:
    number, _, secret = link.partition(".")
    row = store.row("SELECT id, secret FROM people WHERE id = :id", id=read_number(number))
    return store.find_person(row["id"]) if matches(secret, row["secret"] if row else "") and row else None


def begin_session(store: ProjectStore, person: Person | None) -> str:
    """Begin a session, the organiser's for None. Returns its cookie."""
    secret = new_secret()
    with store.writing() as db:
        values = (person.id if person else None, digest_secret(secret))
        number = db.execute("INSERT INTO sessions (person, token) VALUES (?, ?)", values).lastrowid
    return f"{number}.{secret}"


def find_session(store: ProjectStore, cookie: str) -> tuple[bool, Person | None]:
    """Return if a cookie is a session's, and whose: None for the organiser."""
    number, _, secret = cookie.partition(".")
    row = store.row("SELECT person, token FROM sessions WHERE id = :id", id=read_number(number))
    if not matches(secret, row["token"] if row else "") or not row:
        return False, None
    return True, None if row["person"] is None else store.find_person(row["person"])


def read_number(text: str) -> int:
    """Read a number of a path or a cookie; -1 for what is none, or larger than SQLite's."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else -1
