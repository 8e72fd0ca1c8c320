// The view: which curves are shown, over what, sorted how. It lives in the fragment of the address, so that a link
// shows to others what its sender saw, and a reload changes nothing.

const DEFAULTS = {
  x: "k", xscale: "auto", yscale: "auto", from: "", to: "", // the curves
  off: "", // numbers of hidden series, or "none" for all shown
  sort: "", cols: "", tables: "", // the table of results, and how the others are sorted
  theme: "auto", plane: "", at: "", // the look, and the series and the row in the plane
};

const view = {
  values: { ...DEFAULTS },
  listeners: [],

  read() {
    const given = new URLSearchParams(location.hash.slice(1));
    this.values = { ...DEFAULTS };
    for (const [key, value] of given) if (key in DEFAULTS) this.values[key] = value;
  },

  get(key) {
    return this.values[key];
  },

  set(changes) {
    Object.assign(this.values, changes);
    const changed = Object.entries(this.values).filter(([key, value]) => value !== DEFAULTS[key]);
    const fragment = new URLSearchParams(changed).toString();
    history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
    this.tell();
  },

  reset() {
    this.set({ ...DEFAULTS });
  },

  // Calls a listener now, and whenever the view changes.
  follow(listener) {
    this.listeners.push(listener);
    listener();
  },

  tell() {
    for (const listener of this.listeners) listener();
  },
};

addEventListener("hashchange", () => {
  view.read();
  view.tell();
});
