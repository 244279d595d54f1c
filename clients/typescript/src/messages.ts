// Server-sent events: makes messages of bytes, which may be cut anywhere. Lines end with LF, CRLF or CR.

export interface Message {
  id: string | undefined;
  event: string;
  data: string | undefined;
  retryMs: number | undefined;
}

export class MessageParser {
  readonly #decoder = new TextDecoder();
  #rest = "";
  #message = emptyMessage();
  #isEmpty = true;

  feed(chunk: Uint8Array): Message[] {
    const text = this.#rest + this.#decoder.decode(chunk, { stream: true });
    // A CR at the end may be the first half of a CRLF.
    const held = text.endsWith("\r") ? "\r" : "";
    const lines = (held ? text.slice(0, -1) : text).split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + held;
    return lines.map((line) => this.#line(line)).filter((message) => message !== undefined);
  }

  #line(line: string): Message | undefined {
    if (line === "") {
      if (this.#isEmpty) return undefined;
      const message = this.#message;
      this.#message = emptyMessage();
      this.#isEmpty = true;
      return message;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    const message = this.#message;
    if (name === "data") message.data = message.data === undefined ? value : `${message.data}\n${value}`;
    else if (name === "id" && !value.includes("\0")) message.id = value;
    else if (name === "event") message.event = value;
    else if (name === "retry" && /^\d+$/.test(value)) message.retryMs = Number(value);
    else return undefined;
    this.#isEmpty = false;
    return undefined;
  }
}

function emptyMessage(): Message {
  return { id: undefined, event: "message", data: undefined, retryMs: undefined };
}
