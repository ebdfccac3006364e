// Numbers as people read them, with their units.

export function seconds(value) {
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  return value < 9.95 ? `${value.toFixed(2)} s` : `${value.toFixed(0)} s`;
}

export function microseconds(value) {
  if (value < 999.5) return `${Math.round(value)} µs`;
  return value < 99_950 ? `${(value / 1000).toFixed(1)} ms` : `${Math.round(value / 1000)} ms`;
}

const STEPS = ["bytes", "kB", "MB", "GB", "TB"];

export function bytes(value) {
  let step = 0;
  while (value >= 999.5 && step < STEPS.length - 1) {
    value /= 1000;
    step += 1;
  }
  return `${value < 9.95 && step > 0 ? value.toFixed(1) : Math.round(value)} ${STEPS[step]}`;
}

export function count(value) {
  return value.toLocaleString("en-US");
}

export function percent(share) {
  return `${Math.round(share * 100)} %`;
}

export function rate(value) {
  return value < 99.5 ? value.toFixed(1) : Math.round(value).toString();
}

export function plural(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}
