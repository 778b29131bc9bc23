// Package watchfile reads a small file again whenever it changes.
package watchfile

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

// Options are the options of Read. Only Path and Apply are required.
type Options struct {
	Path string

	// Content names what the file has, for messages, such as "tokens".
	Content string

	// Apply puts the content in force, or returns why it is invalid. One goroutine at a time
	// calls it.
	Apply func(data []byte) error

	// Observe is called after each change, with the reason if the file was rejected.
	Observe func(err error)

	MaxBytes int64         // default 1 MiB
	Interval time.Duration // between two reads; default 1 s

	Log *slog.Logger
}

// File is a file that is in force. After a change, the new content is in force within two
// intervals. If the file is invalid or missing, the last valid content stays in force.
type File struct {
	o           Options
	appliedData []byte
	lastData    []byte // of the last read
	lastErr     string // the error logged last
}

// Read reads a file and puts it in force.
func Read(o Options) (*File, error) {
	o.MaxBytes = cmp.Or(o.MaxBytes, 1<<20)
	o.Interval = cmp.Or(o.Interval, time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Observe == nil {
		o.Observe = func(error) {}
	}
	f := &File{o: o}
	data, err := f.read()
	if err != nil {
		return nil, err
	}
	f.appliedData, f.lastData = data, data
	return f, o.Apply(data)
}

// Watch calls Reload at each interval until ctx is done.
func (f *File) Watch(ctx context.Context) {
	for wait.Sleep(ctx, f.o.Interval) {
		f.Reload()
	}
}

// Reload reads the file, and puts it in force if it has changed. It applies a content that two
// reads have found, because somebody may be writing the file.
func (f *File) Reload() {
	changed, err := f.reload()
	switch {
	case err != nil && err.Error() != f.lastErr:
		f.lastErr = err.Error()
		f.o.Log.Error(fmt.Sprintf("%s rejected; the last %s stay in force", f.o.Content, f.o.Content), "file", f.o.Path, "error", err)
		f.o.Observe(err)
	case changed:
		f.lastErr = ""
		f.o.Log.Info(f.o.Content+" reloaded", "file", f.o.Path)
		f.o.Observe(nil)
	}
}

func (f *File) reload() (changed bool, err error) {
	data, err := f.read()
	if err != nil {
		return false, err
	}
	isComplete := bytes.Equal(data, f.lastData)
	f.lastData = data
	if !isComplete || bytes.Equal(data, f.appliedData) && f.lastErr == "" {
		return false, nil
	}
	if err := f.o.Apply(data); err != nil {
		return false, err
	}
	f.appliedData = data
	return true, nil
}

// read returns the content of the file, or an error if it has more than MaxBytes.
func (f *File) read() ([]byte, error) {
	file, err := os.Open(f.o.Path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, f.o.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > f.o.MaxBytes {
		return nil, fmt.Errorf("%s: want at most %d bytes", f.o.Path, f.o.MaxBytes)
	}
	return data, nil
}
