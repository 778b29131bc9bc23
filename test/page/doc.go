// Package page tests the live page in headless Chromium: with snapshots of each state, and
// with the real program. The package is a module of its own, so rls does not depend on the
// client of the browser. make test-page runs the tests. Without Chromium they fail.
package page
