// Package watchfile reads small files at an interval, and puts each change of the files in force.
package watchfile

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

const maxFileBytes = 1 << 20

// Options are the options of Read. Only Paths and Apply are required.
type Options struct {
	Paths []string // the paths of the files; all files come into force together

	// ContentName says in log lines what the files have, such as "tokens".
	ContentName string

	// Apply puts the contents of all files in force. If the contents are invalid, Apply returns an error.
	Apply func(contents [][]byte) error

	// Observe gets nil after each change that came into force, and the error of each change that was rejected.
	Observe func(err error)

	// Details returns attributes for the log line of a change.
	Details func() []any

	Interval time.Duration // the time between two reads; default 1 s

	Log *slog.Logger
}

// Files are files in force. A change comes into force after at most two intervals. If a file is invalid or missing, the
// last valid contents of all files stay in force.
type Files struct {
	options         Options
	appliedContents [][]byte
	lastContents    [][]byte // the contents that the last read found
	loggedError     string   // the error of the last log line; empty if the last log line was about a change
}

// Read reads the files and puts them in force.
func Read(o Options) (*Files, error) {
	o.Interval = cmp.Or(o.Interval, time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Observe == nil {
		o.Observe = func(error) {}
	}
	if o.Details == nil {
		o.Details = func() []any { return nil }
	}
	f := &Files{options: o}
	contents, err := f.read()
	if err != nil {
		return nil, err
	}
	f.appliedContents, f.lastContents = contents, contents
	return f, o.Apply(contents)
}

// Watch calls Reload at each interval until ctx is done.
func (f *Files) Watch(ctx context.Context) {
	for wait.Sleep(ctx, f.options.Interval) {
		f.Reload()
	}
}

// Reload reads the files. It applies a change only when two reads in a row have found the same contents, because during
// one read, somebody may still be writing the files.
func (f *Files) Reload() {
	isChanged, err := f.reload()
	attrs := []any{"file", strings.Join(f.options.Paths, ", ")}
	switch {
	case err != nil && err.Error() != f.loggedError:
		f.loggedError = err.Error()
		f.options.Log.Error(fmt.Sprintf("%s rejected; the last %s stay in force", f.options.ContentName, f.options.ContentName), append(attrs, "error", err)...)
		f.options.Observe(err)
	case isChanged:
		f.loggedError = ""
		f.options.Log.Info(f.options.ContentName+" reloaded", append(attrs, f.options.Details()...)...)
		f.options.Observe(nil)
	}
}

func (f *Files) reload() (isChanged bool, err error) {
	contents, err := f.read()
	if err != nil {
		return false, err
	}
	isStable := equal(contents, f.lastContents)
	f.lastContents = contents
	// After an error, the applied contents are applied again, so that the log and the observer learn that the files are valid.
	if !isStable || equal(contents, f.appliedContents) && f.loggedError == "" {
		return false, nil
	}
	if err := f.options.Apply(contents); err != nil {
		return false, err
	}
	f.appliedContents = contents
	return true, nil
}

func equal(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

func (f *Files) read() (contents [][]byte, err error) {
	for _, path := range f.options.Paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
		if err != nil {
			return nil, err
		}
		if len(data) > maxFileBytes {
			return nil, fmt.Errorf("%s: want at most %d bytes", path, maxFileBytes)
		}
		contents = append(contents, data)
	}
	return contents, nil
}
