"""Server-sent events, cut in every way."""

from __future__ import annotations

import unittest

from greenroom._event_stream import Message, MessageParser

TEXT = "\ufeff: comment\n\nid: 1\nretry: 1500\n\n"
TEXT += "id:2\rdata: é one\r\ndata: two\r\n\r\nevent: end\ndata\n\nid: 3\ndata: cut"
EXPECTED = [
    Message("1", "message", None, 1.5),
    Message("2", "message", "é one\ntwo", None),
    Message(None, "end", "", None),
]


class Messages(unittest.TestCase):
    def test_messages_are_the_same_wherever_the_bytes_are_cut(self) -> None:
        data = TEXT.encode()
        for size in range(1, len(data) + 1):
            parser = MessageParser()
            messages = [m for at in range(0, len(data), size) for m in parser.feed(data[at : at + size])]
            self.assertEqual(messages, EXPECTED, f"{size} bytes at once")

    def test_what_is_not_understood_is_ignored(self) -> None:
        parser = MessageParser()
        self.assertEqual(parser.feed(b"retry: soon\nid: a\0b\nunknown: 1\n\n"), [])


if __name__ == "__main__":
    unittest.main()
