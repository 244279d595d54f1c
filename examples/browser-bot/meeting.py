#!/usr/bin/env python3
"""Serves the pretend meeting, meeting.html, on a free port of this machine.

bot.py starts it in its own process. To look at it in your own browser, run this file.
"""
import pathlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = pathlib.Path(__file__).with_name("meeting.html").read_bytes()


class Pages(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    # An answer is one write. Otherwise the body waits for the browser's delayed acknowledgement of the headers.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self):
        path = self.path.partition("?")[0]
        body = PAGE if path in ("/sign-in", "/meeting") else b"there are only /sign-in and /meeting\n"
        self.send_response(200 if body is PAGE else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8" if body is PAGE else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        if path == "/sign-in":
            self.send_header("Set-Cookie", "signed_in=yes; SameSite=Strict")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # The browser closed a connection.


def start():
    """Serves in a thread that ends with the process. Returns the address."""
    server = Server(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


if __name__ == "__main__":
    url = start()
    print(f"sign in at {url}/sign-in, then open {url}/meeting?lobby=2000")
    threading.Event().wait()
