package decisionlog

import (
	"io"
	"log/slog"
	"os"
)

// output is the file or the stream that a Log writes to. It logs when writing starts to
// fail and when writing works again.
type output struct {
	path string    // empty for a stream
	w    io.Writer // nil if the file is not open
	log  *slog.Logger

	failed bool // the log has the error
	torn   bool // the last line is not complete
}

// filePermissions let the owner write, and a group read, the values of requests.
const filePermissions = 0o640

// open opens the file.
func (o *output) open() {
	if o.path == "" {
		return
	}
	f, err := os.OpenFile(o.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, filePermissions)
	if err != nil {
		o.reportError(err)
		return
	}
	o.w, o.torn = f, endsTorn(f)
}

// endsTorn reports whether a file that can only be written ends in the middle of a line. A full disk or
// the end of a process can tear the last line.
func endsTorn(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	reader, err := os.Open(f.Name())
	if err != nil {
		return false
	}
	defer reader.Close()
	var last [1]byte
	_, err = reader.ReadAt(last[:], info.Size()-1)
	return err == nil && last[0] != '\n'
}

func (o *output) close() {
	if f, ok := o.w.(*os.File); ok && o.path != "" {
		_ = f.Close() // all lines are written
		o.w = nil
	}
}

// reopen closes the file and opens the path again.
func (o *output) reopen() {
	if o.path != "" {
		o.close()
		o.open()
	}
}

// reopenIfMoved opens the path again if the file is not open, or if the path no longer names
// the open file, because a program has moved or removed the file.
func (o *output) reopenIfMoved() {
	if o.path == "" {
		return
	}
	f, isOpen := o.w.(*os.File)
	if !isOpen {
		o.open()
		return
	}
	opened, err := f.Stat()
	if err != nil {
		o.reopen()
		return
	}
	if current, err := os.Stat(o.path); err != nil || !os.SameFile(opened, current) {
		o.reopen()
	}
}

// write writes lines and reports whether it has written all.
func (o *output) write(lines []byte) bool {
	if o.w == nil {
		return false
	}
	if o.torn {
		lines = append([]byte("\n"), lines...)
	}
	n, err := o.w.Write(lines)
	if n > 0 {
		o.torn = lines[n-1] != '\n'
	}
	if err != nil {
		o.reportError(err)
		return false
	}
	if o.failed {
		o.failed = false
		o.log.Info("decision log written again", "path", o.name())
	}
	return true
}

// reportError logs an error, unless the log has one since the last write that worked.
func (o *output) reportError(err error) {
	if !o.failed {
		o.failed = true
		o.log.Error("decision log not written; its records are dropped", "path", o.name(), "error", err)
	}
}

func (o *output) name() string {
	if o.path == "" {
		return "stdout"
	}
	return o.path
}
