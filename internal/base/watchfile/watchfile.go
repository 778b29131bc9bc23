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

	// Content is the name of the content of the files in log lines, such as "tokens".
	Content string

	// Apply puts the contents of all files in force. If the contents are invalid, Apply returns an error.
	Apply func(contents [][]byte) error

	// Observe gets nil after each change that came into force, or the error of a change that was rejected.
	Observe func(err error)

	// Details returns attributes for the log line of a change.
	Details func() []any

	Interval time.Duration // the time between two reads; default 1 s

	Log *slog.Logger
}

// Files are files in force. A change is in force within two intervals. If a file is invalid or missing, the last
// valid content of all files stays in force.
type Files struct {
	o               Options
	appliedContents [][]byte
	lastContents    [][]byte // the contents that the last read found
	loggedError     string   // the error that was logged last; empty after a change that came into force
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
	f := &Files{o: o}
	contents, err := f.read()
	if err != nil {
		return nil, err
	}
	f.appliedContents, f.lastContents = contents, contents
	return f, o.Apply(contents)
}

// Watch calls Reload at each interval until ctx is done.
func (f *Files) Watch(ctx context.Context) {
	for wait.Sleep(ctx, f.o.Interval) {
		f.Reload()
	}
}

// Reload reads the files. It applies a change only when two reads in a row have found the same contents, because after
// one read, somebody may still be writing.
func (f *Files) Reload() {
	changed, err := f.reload()
	attrs := []any{"file", strings.Join(f.o.Paths, ", ")}
	switch {
	case err != nil && err.Error() != f.loggedError:
		f.loggedError = err.Error()
		f.o.Log.Error(fmt.Sprintf("%s rejected; the last %s stay in force", f.o.Content, f.o.Content), append(attrs, "error", err)...)
		f.o.Observe(err)
	case changed:
		f.loggedError = ""
		f.o.Log.Info(f.o.Content+" reloaded", append(attrs, f.o.Details()...)...)
		f.o.Observe(nil)
	}
}

func (f *Files) reload() (changed bool, err error) {
	contents, err := f.read()
	if err != nil {
		return false, err
	}
	isComplete := equal(contents, f.lastContents)
	f.lastContents = contents
	if !isComplete || equal(contents, f.appliedContents) && f.loggedError == "" {
		return false, nil
	}
	if err := f.o.Apply(contents); err != nil {
		return false, err
	}
	f.appliedContents = contents
	return true, nil
}

func equal(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

func (f *Files) read() (contents [][]byte, err error) {
	for _, path := range f.o.Paths {
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
