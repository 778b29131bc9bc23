// Package faults does to real Redis servers what happens to them in production,
// while 32 callers are at work, and holds the service to what docs/failure.md
// promises. Its tests run a short version; make faults runs the whole matrix and
// prints it as a table.
//
// Terms:
//
//   - row: one fault, with the servers it is done to;
//   - tight key: its limit is spent soon, so that what it admits shows the bound;
//   - roomy key: its limit is never reached, so that its counter in Redis must be
//     what was admitted, neither more nor less.
package faults
