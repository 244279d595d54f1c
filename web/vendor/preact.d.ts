// The types of the parts of preact that the dashboard uses.
export interface VNode { type: unknown; props: Record<string, unknown>; key: unknown }
export type Child = VNode | string | number | boolean | null | undefined | Child[];
export function h(type: unknown, props?: Record<string, unknown> | null, ...children: unknown[]): VNode;
export function render(node: Child, parent: Element): void;
export const Fragment: (props: { children?: Child }) => Child;
