// Written by scripts/generate-schema.js from the OpenAPI document: do not edit.

export interface paths {
    "/bots": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List bots
         * @description Returns one page of the user's bots, newest first. New bots do not shift the pages: no bot appears twice or is
         *     missing.
         */
        get: operations["bots_list"];
        put?: never;
        /**
         * Request a bot
         * @description Reserves a bot for a meeting and returns it. The bot gets a slot at once or waits in the queue. Name the meeting by
         *     `meeting_url`, or by `platform` and `native_meeting_id`. Send an `Idempotency-Key` to repeat a request safely: the
         *     same request with the same key returns the same bot.
         */
        post: operations["bots_create"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/active": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List bots that have not ended
         * @description Returns one page of bots of the user, newest first.
         */
        get: operations["bots_active"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/config": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /**
         * Reconfigure a bot (older path)
         * @description Does the same as `PUT /bots/{id}/config`.
         */
        put: operations["bots_configure_by_body"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/start": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Request a bot (older path)
         * @description Does the same as `POST /bots`.
         */
        post: operations["bots_start"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/status": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get the use of the limit
         * @description Returns the number of running bots, the limit, and the bots that have not ended.
         */
        get: operations["bots_usage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/stop": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Ask a bot to leave (older path)
         * @description Does the same as `DELETE /bots/{id}`.
         */
        post: operations["bots_stop"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get a bot
         * @description Returns the bot with its sessions. With `wait_for`, the call waits until the bot is active or has ended, until
         *     `wait_ms` has passed, or until the server stops. Check `status` in the response to see which happened. Returns 503
         *     `overloaded` if too many calls of the user wait.
         */
        get: operations["bots_show"];
        put?: never;
        post?: never;
        /**
         * Ask a bot to leave
         * @description Works in every status and returns the bot. If the server has started nothing for the bot yet, the bot ends at once.
         *     Otherwise it receives the command `leave`. When it has left, it is `completed` with the reason `stopped`.
         */
        delete: operations["bots_delete"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/{id}/config": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /**
         * Reconfigure a bot
         * @description Replaces the configuration of the bot and returns the bot. If the bot is already assigned, it receives the command
         *     `reconfigure`. If not, it gets the new configuration in its data. Returns 404 `not_found` if the user has no such
         *     bot.
         */
        put: operations["bots_configure"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/{id}/data": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Delete the data of a bot
         * @description Deletes the transcript, log, screenshot, configuration and metadata of an ended bot. The bot and its events stay. A
         *     repeated call changes nothing.
         */
        delete: operations["bots_delete_data"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/{id}/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the events of a bot
         * @description Returns one page of the events of the bot, oldest first. Returns 404 `not_found` if the user has no such bot.
         */
        get: operations["bots_events"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/{id}/explain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Explain a bot
         * @description Returns why the bot is where it is: its status and since when, what it waits for and until when, each step with its
         *     duration beside the median of the pool, and what can be done. Works in every status. The texts contain no hosts,
         *     paths, addresses and tokens of the operator: a placeholder such as `[address]` stands for each.
         */
        get: operations["bots_explain"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/{id}/logs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get the log of a bot
         * @description Returns the last lines that the bot printed on standard output and standard error, without its events. Works while
         *     the bot runs and after its end. The server keeps the last 64 KiB.
         */
        get: operations["bots_logs"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/bots/{id}/transcript": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get the transcript of a bot
         * @description Returns one page of segments, ordered by their start time. Returns 404 `not_found` if the user has no such bot.
         */
        get: operations["bots_transcript"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Stream the events of bots
         * @description Sends server-sent events of all bots of the user, or of the one in `bot_id`. Each message has the id of the event in
         *     `id`, and the event as JSON in `data`. The first message has an `id` and no `data`: it is the position of the
         *     stream. To continue after a lost connection, send the last `id` as `Last-Event-ID`. The server then sends every
         *     later event once. Returns 410 `gone` if events after this `id` were deleted: begin again without it. Returns 503
         *     `overloaded` if the user has too many open streams.
         */
        get: operations["events_stream"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/meetings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List bots as meetings
         * @description Returns the same bots as `GET /bots`, in the format of older clients.
         */
        get: operations["meetings_list"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /**
         * @description The status of a bot.
         *
         *     A bot with the status `completed` or `failed` has ended.
         * @enum {string}
         */
        Status: "scheduled" | "reserved" | "queued" | "deploying" | "starting" | "awaiting_admission" | "needs_help" | "active" | "stopping" | "completed" | "failed";
        /**
         * @description The service that hosts a meeting.
         * @enum {string}
         */
        Platform: "google_meet" | "teams" | "zoom";
        /** @description A page of bots, newest first. */
        BotPage: {
            bots: components["schemas"]["Bot"][];
            /** @description Send it as `cursor` to get the next page; `null` on the last page. */
            next_cursor: string | null;
        };
        /** @description A bot: one attendance of one meeting. */
        Bot: {
            /** @description The name of the bot in the meeting. */
            bot_display_name: string | null;
            /** @description The configuration for the bot. */
            config: {
                [key: string]: unknown;
            };
            /**
             * Format: uuid
             * @description The current connection; `null` before the first assignment.
             */
            connection_id: string | null;
            container_id: string | null;
            /** Format: date-time */
            created_at: string;
            /**
             * Format: date-time
             * @description When the server ends the bot unless it gets further: it gets a slot, makes its first callback, joins, sends a
             *     heartbeat or leaves. `null` after the end.
             */
            deadline_at: string | null;
            /** Format: date-time */
            end_time: string | null;
            /**
             * @description What went wrong. Never `null` for a bot that failed. While the bot is `deploying`: why the last attempt to start
             *     it failed.
             */
            error: string | null;
            /**
             * Format: int64
             * @description The estimated time until the bot gets a slot, if the server can estimate it; else `null`.
             */
            estimated_wait_ms: number | null;
            fault: components["schemas"]["Fault"] | null;
            /** Format: uuid */
            id: string;
            /**
             * Format: date-time
             * @description Not supported yet: always `null`.
             */
            join_at: string | null;
            /** @example https://meet.google.com/abc-defg-hij */
            meeting_url: string;
            /** @description The data of the user. */
            metadata: {
                [key: string]: unknown;
            };
            /**
             * @description The id that the platform gave the meeting.
             * @example abc-defg-hij
             */
            native_meeting_id: string;
            platform: components["schemas"]["Platform"];
            /** @description The name of its pool. */
            pool: string | null;
            /**
             * Format: int64
             * @description Bots with a lower value go first.
             */
            priority: number;
            /**
             * Format: int64
             * @description The position in the queue, from 1, while the bot is `queued`; else `null`.
             */
            queue_position: number | null;
            /** @description Why the bot has this status. After the end: `finished`, `stopped`, `crashed`, … or a word that the bot chose. */
            reason: string | null;
            /** @description The requirements for the slot, as the user sent them. */
            requirements: {
                [key: string]: unknown;
            } | null;
            /** @description The sessions of the bot. Only calls that return one bot with its sessions have this field. */
            sessions?: components["schemas"]["Session"][];
            /** @description The name of its slot. */
            slot: string | null;
            /** Format: date-time */
            start_time: string | null;
            status: components["schemas"]["Status"];
            /**
             * Format: date-time
             * @description Since when the bot has this status.
             */
            status_since: string;
            /** Format: date-time */
            updated_at: string;
            /** Format: uuid */
            user_id: string;
        };
        /**
         * @description The cause of a bot's end.
         *
         *     - `host`: the people in the meeting never admitted the bot, or removed it
         *     - `bot`: the program of the bot
         *     - `provider`: the provider, the machine, or a person who stopped the container
         *     - `capacity`: there was no free slot in time
         *     - `none`: the bot ended as planned
         * @enum {string}
         */
        Fault: "host" | "bot" | "provider" | "capacity" | "none";
        /** @description A session: one connection of a bot that has started. */
        Session: {
            /** Format: uuid */
            connection_id: string;
            container_id: string | null;
            /** Format: date-time */
            ended_at: string | null;
            /** Format: date-time */
            joined_at: string | null;
            /** Format: date-time */
            last_heartbeat_at: string | null;
            /** Format: date-time */
            started_at: string;
        };
        /** @description An error, as a problem document of RFC 9457. */
        Problem: {
            /**
             * Format: uuid
             * @description With `duplicate_bot`: the other bot.
             */
            bot_id?: string;
            /** @description With `invalid_transition`: the status of the bot. */
            bot_status?: components["schemas"]["Status"];
            /**
             * @description The code of the error, for programs.
             * @example invalid
             */
            code: string;
            /**
             * @description The explanation of the error, for people. It starts with the name of the wrong field, if there is one.
             * @example `priority`: invalid type: string "high", expected i32
             */
            detail: string;
            /**
             * Format: int64
             * @description With `limit_reached`: how many bots the user may run at once.
             */
            max_concurrent_bots?: number;
            /** @description The id of the request, the same as in the header `X-Request-Id`. The log of the server contains it. */
            request_id: string;
            /**
             * Format: int64
             * @description With `limit_reached`: how many bots count against the limit.
             */
            running?: number;
            /**
             * Format: int32
             * @description The HTTP status.
             * @example 422
             */
            status: number;
            /**
             * @description The name of the HTTP status.
             * @example Unprocessable Entity
             */
            title: string;
            /**
             * @description `about:blank`; `code` identifies the kind of error.
             * @example about:blank
             */
            type: string;
        };
        /** @description A request for a bot. It names the meeting by a link, or by a platform and the id of the meeting there. */
        NewBot: {
            /** @description The name under which the bot appears in the meeting. */
            bot_display_name?: string | null;
            /** @description The configuration for the bot, at most 64 KiB of JSON. Greenroom passes it to the bot unchanged. */
            config?: {
                [key: string]: unknown;
            } | null;
            /**
             * Format: date-time
             * @description Not supported yet: a request with this field gets 422 `unsupported`.
             */
            join_at?: string | null;
            /**
             * @description The link to the meeting, as copied from an invitation.
             * @example https://meet.google.com/abc-defg-hij
             */
            meeting_url?: string | null;
            /** @description Data of the user, at most 64 KiB of JSON. Greenroom stores it and returns it with the bot. */
            metadata?: {
                [key: string]: unknown;
            } | null;
            /** @description The id that the platform gave the meeting. It needs `platform`. */
            native_meeting_id?: string | null;
            platform?: components["schemas"]["Platform"] | null;
            /**
             * Format: int32
             * @description Bots with a lower value go first. The user's `min_priority` is the lowest allowed value. Default 100.
             */
            priority?: number | null;
            /**
             * Format: int64
             * @description How long the bot may wait for a slot. Default 300000, at most 600000; the operator can configure other values.
             */
            queue_timeout_ms?: number | null;
            requirements?: components["schemas"]["Requirements"] | null;
            /** @description Not supported yet: a request with this field gets 422 `unsupported`. */
            webhook_url?: string | null;
        };
        /** @description The requirements of a bot for its slot. A slot must meet all of them. */
        Requirements: {
            /**
             * @description Patterns separated by spaces; the instance type must match one of them. `*` matches any text. Default `c* m*
             *     r*`; a slot whose instance type is unknown then fits too.
             * @example c* m5.large
             */
            allowed_instance_types?: string | null;
            /**
             * Format: int64
             * @description The smallest number of processors.
             */
            cpu?: number | null;
            /**
             * Format: int64
             * @description The smallest amount of memory, in MiB.
             */
            mem?: number | null;
            /** @description The resource class of the slot, for example `large`. Default: any. */
            resource_class?: string | null;
            usage_class?: components["schemas"]["UsageClass"] | null;
        };
        /**
         * @description How the provider charges for a machine.
         * @enum {string}
         */
        UsageClass: "on-demand" | "spot";
        /** @description A bot that the server has reserved. */
        ReservedBot: {
            bot: components["schemas"]["Bot"];
            /**
             * Format: int64
             * @description The estimated time until the bot gets a slot, if the server can estimate it; else `null`.
             */
            estimated_wait_ms: number | null;
            /**
             * Format: int64
             * @description The position of the bot in the queue, from 1, while it waits for a slot; else `null`.
             */
            queue_position: number | null;
        };
        BotConfigBody: {
            /**
             * Format: uuid
             * @description The id of the bot.
             */
            bot_id: string;
            /** @description The complete new configuration, at most 64 KiB of JSON. */
            config: {
                [key: string]: unknown;
            };
        };
        /** @description One bot. */
        OneBot: {
            bot: components["schemas"]["Bot"];
        };
        /** @description How much of its limit a user uses. */
        Usage: {
            /** @description A page of the bots that have not ended, newest first. */
            bots: components["schemas"]["Bot"][];
            /**
             * @description How many bots of the user have each status. For `completed` and `failed`: how many have ended so since the user
             *     was created.
             */
            by_status: {
                [key: string]: number;
            };
            /**
             * Format: int64
             * @description The limit: how many bots the user may run at once.
             */
            max_concurrent_bots: number;
            /** @description Send it as `cursor`, here or to `GET /bots/active`, to get more bots; `null` on the last page. */
            next_cursor: string | null;
            /**
             * Format: int64
             * @description How many bots count against the limit. Bots that are `stopping` do not count.
             */
            running: number;
        };
        StopBody: {
            /**
             * Format: uuid
             * @description The id of the bot.
             */
            bot_id: string;
        };
        ConfigBody: {
            /** @description The complete new configuration, at most 64 KiB of JSON. */
            config: {
                [key: string]: unknown;
            };
        };
        /** @description A page of events, oldest first. */
        EventPage: {
            events: components["schemas"]["Event"][];
            /** @description Send it as `cursor` to get the next page; `null` on the last page. */
            next_cursor: string | null;
        };
        /** @description An event of a bot. */
        Event: {
            actor: components["schemas"]["Actor"];
            /** Format: date-time */
            at: string;
            /** Format: uuid */
            bot_id: string;
            from: components["schemas"]["Status"] | null;
            /** Format: int64 */
            id: number;
            kind: components["schemas"]["EventKind"];
            /** @description Why it happened. For events of commands: the action of the command. */
            reason: string | null;
            to: components["schemas"]["Status"] | null;
        };
        /**
         * @description The cause of an event.
         *
         *     `greenroom` stands for placement and deployment, `keeper` for a background job of the server.
         * @enum {string}
         */
        Actor: "user" | "bot" | "operator" | "greenroom" | "keeper";
        /**
         * @description The kind of an event.
         *
         *     A `warning` says that the bot did something without effect, for example that it printed an unknown event.
         * @enum {string}
         */
        EventKind: "created" | "assigned" | "requeued" | "status_changed" | "command_sent" | "command_acknowledged" | "warning";
        /** @description Why a bot or a slot is where it is. */
        Explanation: {
            /** @description What a person can do; `null` if nothing needs to be done. */
            advice: string | null;
            provider: components["schemas"]["ProviderReport"];
            /** Format: date-time */
            since: string;
            /**
             * @description The status of the bot or the slot; `gone` for a slot that no longer exists.
             * @example deploying
             */
            status: string;
            /** @description What happened so far, oldest first; of a bot the last 200 steps. */
            steps: components["schemas"]["Step"][];
            /** @description The whole story in one or two sentences. */
            summary: string;
            /**
             * Format: date-time
             * @description When the wait ends at the latest, and the server acts; `null` if the wait has no limit.
             */
            until: string | null;
            /** @description What it waits for; `null` after the end. */
            waiting_for: string | null;
        };
        /** @description What the provider says about the slot. */
        ProviderReport: {
            /** @description The last lines of the output, oldest first, at most 20 of a bot. */
            last_lines: string[];
            /** @description The last error of the provider, or its description of the slot, which only operators see. */
            message: string | null;
            status: components["schemas"]["ProviderState"] | null;
        };
        /**
         * @description The state of a slot at its provider.
         * @enum {string}
         */
        ProviderState: "running" | "unhealthy" | "stopped" | "missing" | "failed" | "no_answer" | "not_configured";
        /** @description A part of the life of a bot or a slot. */
        Step: {
            /**
             * Format: date-time
             * @description When the step began.
             */
            at: string;
            /**
             * Format: int64
             * @description The median of the same step of the last bots of the pool that have ended; `null` if there is none.
             */
            median_ms: number | null;
            /**
             * Format: int64
             * @description How long the step took; `null` if it is not over, or took no time.
             */
            took_ms: number | null;
            /** @example waiting for a slot */
            what: string;
        };
        /** @description The last lines of the log of a bot, oldest first. */
        BotLog: {
            lines: components["schemas"]["LogLine"][];
            /** @description Whether the bot printed earlier lines that are missing here. */
            truncated: boolean;
        };
        /** @description A line of the log of a bot. */
        LogLine: {
            /**
             * Format: date-time
             * @description When the bot printed the line; `null` if the time is unknown.
             */
            at: string | null;
            text: string;
        };
        /** @description A page of segments, by start, end and arrival. */
        Transcript: {
            /** @description Send it as `cursor` to get the next page; `null` on the last page. */
            next_cursor: string | null;
            segments: components["schemas"]["Segment"][];
        };
        /** @description A segment of a transcript. */
        Segment: {
            /**
             * Format: double
             * @description The end of the segment in seconds.
             */
            end_time: number;
            language: string | null;
            /**
             * Format: uuid
             * @description The id of the connection under which the bot sent the segment.
             */
            session_uid: string;
            speaker: string | null;
            /**
             * Format: double
             * @description The start of the segment in seconds. The bot chooses the zero point.
             */
            start_time: number;
            text: string;
        };
        /** @description A page of bots as meetings, newest first. */
        MeetingPage: {
            meetings: components["schemas"]["Meeting"][];
            /** @description Send it as `cursor` to get the next page; `null` on the last page. */
            next_cursor: string | null;
        };
        /** @description A bot in the format of older clients: as the meeting that it attends. */
        Meeting: {
            bot_container_id: string | null;
            /** Format: date-time */
            created_at: string;
            /** @description The link of the meeting, and the name, reason, configuration and metadata of the bot. */
            data: unknown;
            /** Format: date-time */
            end_time: string | null;
            /** Format: uuid */
            id: string;
            platform: components["schemas"]["Platform"];
            platform_specific_id: string;
            /** Format: date-time */
            start_time: string | null;
            status: components["schemas"]["Status"];
            /** Format: date-time */
            updated_at: string;
            /** Format: uuid */
            user_id: string;
        };
        /** @description An event of a bot, as `GET /events` sends it. */
        StreamedEvent: components["schemas"]["Event"] & {
            /** @description What went wrong. Only for the event of the end of a bot; else `null`. */
            error: string | null;
            /** @description The metadata of the bot. */
            metadata: {
                [key: string]: unknown;
            };
        };
    };
    responses: {
        /** @description `unauthorized`: the key or token is missing or wrong */
        Unauthorized: {
            headers: {
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `invalid`: a field or parameter is not valid or not known; `detail` names it */
        Invalid: {
            headers: {
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `overloaded`: the server has too much to do; `unavailable`: the database does not answer, or the server is stopping */
        Unavailable: {
            headers: {
                /** @description How many seconds to wait before the next attempt */
                "Retry-After"?: string;
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description The request failed: `code` names the error, `detail` explains it */
        Refused: {
            headers: {
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `not_found`: there is no such thing, or the caller may not see it */
        NotFound: {
            headers: {
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
    };
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    bots_list: {
        parameters: {
            query?: {
                /** @description Only bots with this status. */
                status?: components["schemas"]["Status"];
                /** @description Only bots on this platform. */
                platform?: components["schemas"]["Platform"];
                /**
                 * @description Only bots of this meeting: a meeting link, or the id that the platform gave the meeting.
                 * @example abc-defg-hij
                 */
                meeting?: string;
                /**
                 * @description Only bots whose metadata has this value for `KEY`, for example `metadata.customer=42`. May be repeated with
                 *     other keys.
                 */
                "metadata.KEY"?: string;
                /**
                 * @description The largest number of entries on the page. A page may have fewer: it ends at about 1 MiB, and with a filter
                 *     after about 1000 bots were searched. Continue while `next_cursor` is not `null`.
                 */
                limit?: number;
                /** @description The `next_cursor` of the previous page. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A page of bots, newest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BotPage"];
                };
            };
            401: components["responses"]["Unauthorized"];
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_create: {
        parameters: {
            query?: never;
            header?: {
                /** @description 1 to 255 printable ASCII characters. The same key and request return the same bot */
                "Idempotency-Key"?: string | null;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewBot"];
            };
        };
        responses: {
            /** @description The bot of an earlier request with the same `Idempotency-Key` */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ReservedBot"];
                };
            };
            /** @description The new bot */
            201: {
                headers: {
                    /** @description The path of the bot: `/bots/{id}` */
                    Location?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ReservedBot"];
                };
            };
            401: components["responses"]["Unauthorized"];
            /** @description `duplicate_bot`: another bot of the user attends this meeting; `bot_id` is its id */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid` or `unsupported`: `detail` names the field; `idempotency_mismatch`: the key belongs to an earlier request with another body */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `limit_reached`: the user has reached its limit of bots */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_active: {
        parameters: {
            query?: {
                /** @description The largest number of entries on the page. A page may have fewer, because it ends at about 1 MiB. */
                limit?: number;
                /** @description The `next_cursor` of the previous page. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A page of bots that have not ended, newest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BotPage"];
                };
            };
            401: components["responses"]["Unauthorized"];
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_configure_by_body: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BotConfigBody"];
            };
        };
        responses: {
            /** @description The bot with its new configuration */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OneBot"];
                };
            };
            401: components["responses"]["Unauthorized"];
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_start: {
        parameters: {
            query?: never;
            header?: {
                /** @description 1 to 255 printable ASCII characters. The same key and request return the same bot */
                "Idempotency-Key"?: string | null;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewBot"];
            };
        };
        responses: {
            /** @description The bot of an earlier request with the same `Idempotency-Key` */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ReservedBot"];
                };
            };
            /** @description The new bot */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ReservedBot"];
                };
            };
            401: components["responses"]["Unauthorized"];
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_usage: {
        parameters: {
            query?: {
                /** @description The largest number of entries on the page. A page may have fewer, because it ends at about 1 MiB. */
                limit?: number;
                /** @description The `next_cursor` of the previous page. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The current use */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Usage"];
                };
            };
            401: components["responses"]["Unauthorized"];
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_stop: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["StopBody"];
            };
        };
        responses: {
            /** @description The bot had already ended */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OneBot"];
                };
            };
            /** @description The bot was asked to leave */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OneBot"];
                };
            };
            401: components["responses"]["Unauthorized"];
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_show: {
        parameters: {
            query?: {
                /** @description Wait until the bot is active or has ended, at most `wait_ms`. */
                wait_for?: "active" | "ended";
                /** @description How long to wait, at most 60000. Allowed only with `wait_for`. */
                wait_ms?: number;
            };
            header?: never;
            path: {
                /** @description The id of the bot */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The bot with its sessions */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OneBot"];
                };
            };
            401: components["responses"]["Unauthorized"];
            /** @description `not_found`: the user has no such bot */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_delete: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The id of the bot */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The bot had already ended */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OneBot"];
                };
            };
            /** @description The bot was asked to leave */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OneBot"];
                };
            };
            401: components["responses"]["Unauthorized"];
            /** @description `not_found`: the user has no such bot */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_configure: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The id of the bot */
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ConfigBody"];
            };
        };
        responses: {
            /** @description The bot with its new configuration */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OneBot"];
                };
            };
            401: components["responses"]["Unauthorized"];
            404: components["responses"]["NotFound"];
            /** @description `bot_ended`: the bot has ended */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_delete_data: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The id of the bot */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The data is deleted */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            401: components["responses"]["Unauthorized"];
            /** @description `not_found`: the user has no such bot */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid_transition`: the bot has not ended */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_events: {
        parameters: {
            query?: {
                /** @description The largest number of entries on the page. A page may have fewer, because it ends at about 1 MiB. */
                limit?: number;
                /** @description The `next_cursor` of the previous page. */
                cursor?: string;
            };
            header?: never;
            path: {
                /** @description The id of the bot */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A page of events, oldest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["EventPage"];
                };
            };
            401: components["responses"]["Unauthorized"];
            404: components["responses"]["NotFound"];
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_explain: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The id of the bot */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The explanation */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Explanation"];
                };
            };
            401: components["responses"]["Unauthorized"];
            /** @description `not_found`: the user has no such bot */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_logs: {
        parameters: {
            query?: {
                /** @description How many of the last lines to return. */
                lines?: number;
            };
            header?: never;
            path: {
                /** @description The id of the bot */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The last lines of the log, oldest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BotLog"];
                };
            };
            401: components["responses"]["Unauthorized"];
            /** @description `not_found`: the user has no such bot */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    bots_transcript: {
        parameters: {
            query?: {
                /** @description The largest number of entries on the page. A page may have fewer, because it ends at about 1 MiB. */
                limit?: number;
                /** @description The `next_cursor` of the previous page. */
                cursor?: string;
            };
            header?: never;
            path: {
                /** @description The id of the bot */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A page of segments, ordered by their start time */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Transcript"];
                };
            };
            401: components["responses"]["Unauthorized"];
            404: components["responses"]["NotFound"];
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    events_stream: {
        parameters: {
            query?: {
                /** @description Only the events of this bot. */
                bot_id?: string;
                /** @description The same as the header `Last-Event-ID`, for clients that cannot set headers. The header has precedence. */
                last_event_id?: string;
            };
            header?: {
                /** @description The last `id` that the client received */
                "Last-Event-ID"?: string | null;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A stream of events; `data` of each is a `StreamedEvent` */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example id: 41
                     *     retry: 1000
                     *
                     *     id: 42
                     *     data: {"id":42,"bot_id":"01982f3e-7b1c-7d20-9f6e-0d5c6a3f1b7e","at":"2026-11-16T12:00:01.5Z","kind":"status_changed","from":"starting","to":"active","reason":null,"actor":"bot","metadata":{},"error":null}
                     */
                    "text/event-stream": string;
                };
            };
            401: components["responses"]["Unauthorized"];
            /** @description `not_found`: the user has no such bot */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `gone`: events at or after `Last-Event-ID` were deleted */
            410: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
    meetings_list: {
        parameters: {
            query?: {
                /** @description Only bots with this status. */
                status?: components["schemas"]["Status"];
                /** @description Only bots on this platform. */
                platform?: components["schemas"]["Platform"];
                /**
                 * @description Only bots of this meeting: a meeting link, or the id that the platform gave the meeting.
                 * @example abc-defg-hij
                 */
                meeting?: string;
                /**
                 * @description Only bots whose metadata has this value for `KEY`, for example `metadata.customer=42`. May be repeated with
                 *     other keys.
                 */
                "metadata.KEY"?: string;
                /**
                 * @description The largest number of entries on the page. A page may have fewer: it ends at about 1 MiB, and with a filter
                 *     after about 1000 bots were searched. Continue while `next_cursor` is not `null`.
                 */
                limit?: number;
                /** @description The `next_cursor` of the previous page. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A page of meetings, newest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MeetingPage"];
                };
            };
            401: components["responses"]["Unauthorized"];
            422: components["responses"]["Invalid"];
            503: components["responses"]["Unavailable"];
            default: components["responses"]["Refused"];
        };
    };
}
