// Package reload puts limits and overrides in force.
package reload
