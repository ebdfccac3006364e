// The browser's storage, which may be full, or closed to this page: then nothing is kept.

/** `area` is "localStorage", or "sessionStorage", which ends with the tab. */
export function kept(key, area = "localStorage") {
  try {
    return window[area].getItem(key);
  } catch {
    return null;
  }
}

/** Returns whether it is kept now. */
export function keep(key, text, area = "localStorage") {
  try {
    window[area].setItem(key, text);
    return true;
  } catch {
    return false;
  }
}

export function forget(key, area = "localStorage") {
  try {
    window[area].removeItem(key);
  } catch {
    // It was not kept.
  }
}

export function keptKeys() {
  try {
    return Object.keys(localStorage);
  } catch {
    return [];
  }
}
