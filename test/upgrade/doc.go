// Package upgrade checks that two versions of rls can share one Redis. docs/migrate.md
// has the promises.
package upgrade
