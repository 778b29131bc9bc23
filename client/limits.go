package client

import (
	"errors"
	"fmt"
	"os"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// Limits are the limits of limits files. They are immutable.
type Limits struct {
	config   *descriptors.Config
	warnings []string
}

// ReadLimits reads limits files. Each file has its own domain.
func ReadLimits(paths ...string) (*Limits, error) {
	var files []limitsfile.File
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("limits file: %w", err)
		}
		files = append(files, limitsfile.File{Name: path, Data: data})
	}
	return newLimits(files)
}

// ParseLimits parses the text of a limits file. name is shown in errors.
func ParseLimits(name, text string) (*Limits, error) {
	return newLimits([]limitsfile.File{{Name: name, Data: []byte(text)}})
}

func newLimits(files []limitsfile.File) (*Limits, error) {
	if len(files) == 0 {
		return nil, errors.New("limits files: got none, want at least 1")
	}
	set, err := limitsfile.Parse(files, limitsfile.Options{ReadList: os.ReadFile})
	if err != nil {
		return nil, err
	}
	l := &Limits{config: descriptors.Compile(set)}
	for _, w := range set.Warnings {
		l.warnings = append(l.warnings, w.String())
	}
	return l, nil
}

// Warnings reports parts of the files that are valid but are probably mistakes.
func (l *Limits) Warnings() []string { return l.warnings }
