// What the client throws. `ApiError` and its subclasses are answers of the server; the others are not.

import type { Bot, Problem } from "./types.js";

/** Everything that this package throws, except the reason of an `AbortSignal`. */
export class GreenroomError extends Error {
  override name = this.constructor.name;
}

/** No answer came: the connection failed, broke, or was silent for too long. */
export class ServerUnreachableError extends GreenroomError {}

/** The answer is not one of Greenroom. Perhaps the address is that of another server. */
export class UnexpectedAnswerError extends GreenroomError {}

/** The bot was not there in time. `bot` is the bot as it was then. */
export class WaitTimeoutError extends GreenroomError {
  constructor(
    readonly bot: Bot,
    until: string,
  ) {
    super(`the bot ${bot.id} is ${bot.status}; it was not ${until} in time`);
  }
}

/** The bot ended before it was active. `bot` has its `reason`, `fault` and `error`. */
export class BotEndedError extends GreenroomError {
  constructor(readonly bot: Bot) {
    const because = [bot.reason, bot.error].filter(Boolean).join(": ");
    super(`the bot ${bot.id} ${bot.status} before it was active (${because})`);
  }
}

/** The server refused the request, or failed. Programs check `code`, people read `detail`. */
export class ApiError extends GreenroomError {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  /** The id of the request in the log of the server. */
  readonly requestId: string | undefined;
  /** The whole problem document; empty if the answer is not one. */
  readonly problem: Partial<Problem>;
  /** How many seconds to wait before the next attempt, if the server said so. */
  readonly retryAfter: number | undefined;

  constructor(status: number, headers: Headers, body: string) {
    const problem = parsed(body);
    const code = problem.code ?? `http_${status}`;
    const detail = problem.detail ?? (body.slice(0, 200).trim() || "no explanation");
    const requestId = problem.request_id ?? headers.get("x-request-id") ?? undefined;
    super(`${status} ${code}: ${detail}${requestId ? ` (request ${requestId})` : ""}`);
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.requestId = requestId;
    this.problem = problem;
    const seconds = Number.parseFloat(headers.get("retry-after") ?? "");
    this.retryAfter = Number.isFinite(seconds) && seconds >= 0 ? seconds : undefined;
  }
}

/** 400, 413, 415 or 422: the request is not valid, and `detail` names the field. */
export class InvalidRequestError extends ApiError {}

/** 401 or 403: the key is missing, wrong, or may not do this. */
export class UnauthorizedError extends ApiError {}

/** 404: there is no such thing, or it belongs to another user. */
export class NotFoundError extends ApiError {}

/** 409: the state of the bot does not allow the request. */
export class ConflictError extends ApiError {}

/** 409 `duplicate_bot`: another bot of the user attends this meeting. */
export class DuplicateBotError extends ConflictError {
  /** The other bot. */
  readonly botId: string = this.problem.bot_id ?? "";
}

/**
 * 410 `gone`: the server no longer has the events after the last id. Read the current state with `bots.list`, and
 * follow the events again without `lastEventId`.
 */
export class GoneError extends ApiError {}

/** 429 `limit_reached`: the user has reached its limit of bots. */
export class LimitReachedError extends ApiError {
  /** How many bots count against the limit. */
  readonly running: number | undefined = this.problem.running;
  /** The limit. */
  readonly maxConcurrentBots: number | undefined = this.problem.max_concurrent_bots;
}

/** 5xx: the fault is in the server; its log has the cause under `requestId`. */
export class ServerError extends ApiError {}

/** 503: the server has too much to do, is stopping, or its database does not answer. */
export class UnavailableError extends ServerError {}

type ErrorClass = new (status: number, headers: Headers, body: string) => ApiError;

const BY_CODE: Record<string, ErrorClass> = { duplicate_bot: DuplicateBotError, limit_reached: LimitReachedError };
const BY_STATUS: Record<number, ErrorClass> = {
  400: InvalidRequestError,
  401: UnauthorizedError,
  403: UnauthorizedError,
  404: NotFoundError,
  409: ConflictError,
  410: GoneError,
  413: InvalidRequestError,
  415: InvalidRequestError,
  422: InvalidRequestError,
  503: UnavailableError,
};

/** The error that an answer stands for. */
export async function apiError(response: Response): Promise<ApiError> {
  const body = await response.text();
  const { status, headers } = response;
  const kind = BY_CODE[parsed(body).code ?? ""] ?? BY_STATUS[status] ?? (status >= 500 ? ServerError : ApiError);
  return new kind(status, headers, body);
}

/** A proxy in between may answer with something else than a problem. */
function parsed(body: string): Partial<Problem> {
  try {
    const problem: unknown = JSON.parse(body);
    return typeof problem === "object" && problem !== null ? problem : {};
  } catch {
    return {};
  }
}
