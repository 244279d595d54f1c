// The types of the hooks that the dashboard uses.
export type Inputs = readonly unknown[];
export type StateUpdater<S> = (value: S | ((previous: S) => S)) => void;
export function useState<S>(initial: S | (() => S)): [S, StateUpdater<S>];
export function useState<S = undefined>(): [S | undefined, StateUpdater<S | undefined>];
export function useReducer<S, A>(reducer: (state: S, action: A) => S, initial: S): [S, (action: A) => void];
export function useEffect(effect: () => void | (() => void), inputs?: Inputs): void;
export function useLayoutEffect(effect: () => void | (() => void), inputs?: Inputs): void;
export function useRef<T>(initial: T): { current: T };
export function useRef<T>(initial: T | null): { current: T | null };
export function useMemo<T>(factory: () => T, inputs: Inputs | undefined): T;
export function useCallback<T extends Function>(callback: T, inputs: Inputs): T;
export function useErrorBoundary(callback?: (error: any) => void): [any, () => void];
