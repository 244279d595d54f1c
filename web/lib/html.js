// What a component needs to render: `html` as a tagged template, and the hooks.

import { h, render, Fragment } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { h, render, Fragment };
export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useReducer, useErrorBoundary } from "../vendor/preact-hooks.js";
