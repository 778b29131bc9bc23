// Package faults breaks real Redis servers as production does, while 32 callers send
// calls, and checks the promises of docs/failure.md.
//
// go test gives each fault a second and allows for a slow machine. make faults runs
// all faults at full length, checks the promised times and prints tables.
//
// The tests of prices and of distance run the built program, and read its metrics.
//
// Terms:
//
//   - fault: a row of the table, with the Redis servers that it breaks;
//   - tight key: its limit is soon spent, so the hits that it admits show the bound;
//   - roomy key: its limit is never reached, so its counter in Redis must equal the
//     number of admitted hits.
package faults
