package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	filesource "github.com/seed-81f232ab/rls/internal/source/file"
)

const stdinPath = "-"

// requirePaths makes cmd require one path or more. A mistake in the command line is an inputError.
func requirePaths(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, paths []string) error {
		return inputError(argCount(1, math.MaxInt)(cmd, paths))
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return inputError(flagError(cmd, err)) })
}

// inputError returns err with the exit code of a command whose input has mistakes.
func inputError(err error) error {
	if err == nil {
		return nil
	}
	return &errorWithCode{2, err}
}

// addMergeFlag adds --merge. Without the flag, the variable of the service decides.
func addMergeFlag(fs *pflag.FlagSet, mergesDomains *bool) {
	fs.BoolVar(mergesDomains, "merge", false, "merge files of the same domain (MERGE_DOMAIN_CONFIG)")
	*mergesDomains, _ = strconv.ParseBool(os.Getenv("MERGE_DOMAIN_CONFIG"))
}

// loadLimits reads the limits files in all paths. The path - is stdin, unless stdin is nil.
func loadLimits(stdin io.Reader, paths []string, limitsOptions limitsfile.Options) (*descriptors.Config, error) {
	files, _, errs := readLimits(stdin, paths, false)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	set, err := filesource.Parse(files, limitsOptions)
	if err != nil {
		return nil, err
	}
	return descriptors.Compile(set), nil
}

// readLimits returns the limits files in all paths, the skipped files with the reasons, and an error for each path
// that it can't read. The path - is stdin, unless stdin is nil.
func readLimits(stdin io.Reader, paths []string, ignoreDotFiles bool) (files []limitsfile.File, skippedFiles []string, errs []error) {
	for i, path := range paths {
		switch {
		case path != stdinPath || stdin == nil:
			newFiles, newSkippedFiles, err := filesource.Place{Root: path, IgnoreDotFiles: ignoreDotFiles}.Read()
			for _, file := range newSkippedFiles {
				skippedFiles = append(skippedFiles, fmt.Sprint(file))
			}
			if err != nil {
				errs = append(errs, err)
			}
			files = append(files, newFiles...)
		case slices.Contains(paths[:i], stdinPath):
			errs = append(errs, errors.New("the path - is given twice; want it once"))
		default:
			data, err := io.ReadAll(io.LimitReader(stdin, limitsfile.DefaultMaxFileBytes+1)) // Parse rejects larger files
			if err != nil {
				errs = append(errs, fmt.Errorf("stdin: %w", err))
			}
			files = append(files, limitsfile.File{Name: "stdin", Data: data})
		}
	}
	return files, skippedFiles, errs
}

func readBoundedFile(path string, maxBytes int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err == nil && int64(len(data)) > maxBytes {
		err = fmt.Errorf("%s: file is larger than %d bytes", path, maxBytes)
	}
	return data, err
}
