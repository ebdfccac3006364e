// Draws a growing answer at most once a frame, and less often where drawing takes long.

const SHARE = 4; // at most a fifth of the time is spent on drawing

export class Pace {
  constructor(draw) {
    this.draw = draw;
    this.next = 0;
    this.asked = false;
  }

  ask() {
    if (this.asked) return;
    this.asked = true;
    const wait = this.next - performance.now();
    if (wait > 16) setTimeout(() => this.drawn(), wait);
    else requestAnimationFrame(() => this.drawn());
  }

  now() {
    this.asked = true;
    this.drawn();
  }

  drawn() {
    if (!this.asked) return;
    this.asked = false;
    const begun = performance.now();
    this.draw();
    const ended = performance.now();
    this.next = ended + SHARE * (ended - begun);
  }
}
