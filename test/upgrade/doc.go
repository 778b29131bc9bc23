// Package upgrade checks that two versions of rls can share one Redis. docs/compatibility.md
// has the promises.
package upgrade
