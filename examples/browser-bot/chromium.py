"""A Chromium with one page and a new profile, for one bot.

The bot drives it with the DevTools protocol over a pipe, in JSON messages that end with a zero byte. A script of the bot
runs in the page, in a JavaScript world of its own: it sees the page's elements, and the page cannot see it. So the page
cannot report anything in the bot's name.
"""
import json
import os
import shutil
import signal
import sys

# As Puppeteer and Playwright do: no first-run pages, no downloads or reports in the background, no throttling of a page
# that nobody looks at, no question to a keyring. The last two lines make the way from one page to the next shorter.
FLAGS = """--headless=new --remote-debugging-pipe --no-startup-window --window-size=1280,720 --hide-scrollbars --mute-audio
--no-first-run --no-default-browser-check --no-service-autorun --disable-sync --disable-default-apps --disable-extensions
--disable-component-extensions-with-background-pages --disable-component-update --disable-background-networking
--disable-client-side-phishing-detection --disable-domain-reliability --metrics-recording-only --disable-breakpad
--disable-background-timer-throttling --disable-backgrounding-occluded-windows --disable-renderer-backgrounding
--disable-ipc-flooding-protection --disable-hang-monitor --disable-popup-blocking --disable-prompt-on-repost
--disable-search-engine-choice-screen --disable-gpu --password-store=basic --use-mock-keychain
--disable-features=Translate,MediaRouter,OptimizationHints,WebUIOmniboxAimPopup,WebUIOmniboxPopup,RenderDocument,PaintHolding
--enable-features=AvoidUnnecessaryBeforeUnloadCheckSync --disable-back-forward-cache""".split()
PROGRAMS = ["chromium", "chromium-browser", "google-chrome"]
HIDDEN_VARIABLES = ("BOT_DATA", "XDG_", "DBUS_")
SHM_BYTES_MIN = 256 * 1024 * 1024


class BrowserError(Exception):
    """The browser cannot be used, or not any more."""

    def __init__(self, reason, message):
        super().__init__(message)
        self.reason = reason


class Chromium:
    def __init__(self, script, on_report):
        """Starts the browser. In each page, the script can call greenroomReport(text), which calls on_report(text)."""
        self.script = script
        self.on_report = on_report
        self.session = None  # of the page, once it is open
        self.world = None  # of the script, in the page that is shown
        self.sent = 0
        self.on_result = {}  # by the id of the message that was sent
        self.unread = b""
        self.folder = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"browser-bot-{os.urandom(8).hex()}")
        self.console = os.path.join(self.folder, "console")
        self.pid = None
        os.mkdir(self.folder, 0o700)
        from_bot, to_browser = os.pipe()
        self.fileno, to_bot = os.pipe()
        self.start([(os.POSIX_SPAWN_DUP2, from_bot, 3), (os.POSIX_SPAWN_DUP2, to_bot, 4),
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, self.console, os.O_WRONLY | os.O_CREAT, 0o600), (os.POSIX_SPAWN_DUP2, 1, 2)])
        os.close(from_bot)
        os.close(to_bot)  # Only the browser has it now, so the pipe closes when the browser ends.
        self.pipe = os.fdopen(to_browser, "wb")

    def start(self, file_actions):
        flags = [*FLAGS, f"--user-data-dir={self.folder}/profile", *os.environ.get("BROWSER_FLAGS", "").split()]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # With its sandbox, Chromium does not run as root.
        shm = os.statvfs("/dev/shm")
        if shm.f_bavail * shm.f_frsize < SHM_BYTES_MIN:
            flags.append("--disable-dev-shm-usage")  # A page can need more than the 64 MiB of a container.
        # The browser gets neither the token in BOT_DATA nor the home of this user. It keeps the variables GREENROOM_…,
        # by which Greenroom finds every process of a slot.
        variables = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN_VARIABLES)}
        variables["HOME"] = self.folder
        # A short name of the same folder: Chromium makes a socket in it, and a socket's path may have 107 bytes.
        os.chdir(self.folder)
        variables["TMPDIR"] = "/proc/self/cwd"
        failures = []
        for program in [os.environ["CHROMIUM"]] if os.environ.get("CHROMIUM") else PROGRAMS:
            try:
                # In a session of its own: a Ctrl-C reaches only the bot, and `close` ends every process of the browser.
                self.pid = os.posix_spawnp(program, [program, *flags], variables, file_actions=file_actions, setsid=True)
                return
            except OSError as error:
                failures.append(f"{program}: {error.strerror}")
        self.close()
        raise BrowserError("no_browser", f"no browser found ({', '.join(failures)}): install chromium or set CHROMIUM")

    def close(self):
        """Ends the browser and removes everything of it."""
        if self.pid:
            self.kill()
        os.chdir("/")
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self):
        """Ends every process of the browser, which keeps nothing. Returns how it had ended, if it had."""
        os.killpg(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = None
        return f"code {code}" if code >= 0 else f"signal {-code}"

    def open_first_page(self, url):
        # The page waits until the script is in it: see on_event.
        self.send("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True,
                  filter=[{"type": "page"}])
        self.send("Target.createTarget", url=url)

    def open_page(self, url):
        self.send("Page.navigate", url=url)

    def add_script(self, source):
        """Runs this too in every page that opens from now on, after the other scripts."""
        self.send("Page.addScriptToEvaluateOnNewDocument", source=source, worldName="greenroom")

    def call_script(self, function, argument):
        """Calls a function of the script in the page that is open."""
        self.send("Runtime.callFunctionOn", functionDeclaration=f"function (argument) {{ {function}(argument) }}",
                  arguments=[{"value": argument}], executionContextId=self.world)

    def send(self, method, on_result=None, **params):
        """Sends a message to the page, or to the browser while there is no page. Does not wait for the result."""
        self.sent += 1
        self.on_result[self.sent] = on_result
        message = {"id": self.sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        try:
            self.pipe.write(json.dumps(message).encode() + b"\0")
            self.pipe.flush()
        except OSError:
            self.fail()

    def receive(self):
        """Handles the messages that have come. Call it when `fileno` is readable."""
        read = os.read(self.fileno, 1024 * 1024)
        if not read:
            self.fail()
        *messages, self.unread = (self.unread + read).split(b"\0")
        for message in map(json.loads, messages):
            if "method" in message:
                self.on_event(message["method"], message["params"])
                continue
            on_result = self.on_result.pop(message["id"])
            if "error" in message:
                print(f"browser-bot: browser call failed: {message['error']['message']}", file=sys.stderr, flush=True)
            elif on_result:
                on_result(message["result"])

    def on_event(self, method, params):
        if method == "Runtime.bindingCalled":
            self.world = params["executionContextId"]
            self.on_report(params["payload"])
        elif method == "Target.attachedToTarget" and not self.session:
            self.session = params["sessionId"]
            self.send("Page.enable")
            self.send("Runtime.enable")
            self.send("Runtime.addBinding", name="greenroomReport", executionContextName="greenroom")
            self.add_script(self.script)
            self.send("Runtime.runIfWaitingForDebugger")
        elif method == "Page.frameNavigated" and "unreachableUrl" in params["frame"]:
            raise BrowserError("page_not_opened", f"the page {params['frame']['unreachableUrl']} cannot be opened")
        elif method == "Inspector.targetCrashed":
            raise BrowserError("page_crashed", "the page crashed")

    def fail(self):
        how = self.kill()
        with open(self.console, errors="replace") as console:
            # Without D-Bus, which no container has, Chromium fills its log with that.
            last = " | ".join([line.strip() for line in console if "dbus/" not in line][-3:])
        raise BrowserError("browser_ended", f"the browser ended by itself, with {how}; its last output: {last or 'none'}")
