// The type of htm, bound to a function that makes nodes.
declare const htm: {
  bind<T>(h: (type: any, props?: any, ...children: any[]) => T): (strings: TemplateStringsArray, ...values: any[]) => T;
};
export default htm;
