// Package release builds the files of a release and installs them in a fresh root. The tests that
// build have the build tag release. make test-release runs them. The other tests check the workflows,
// the fuzz targets of OSS-Fuzz and the verification of releases.
package release
