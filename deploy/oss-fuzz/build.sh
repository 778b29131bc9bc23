#!/usr/bin/env bash
# Builds each fuzz target with the compiler of OSS-Fuzz, and packs the inputs of its folder
# testdata/fuzz as its first inputs. OSS-Fuzz runs the script with the variables SRC and OUT.
set -euo pipefail
repository=$SRC/rls

failed=0
while read -r folder name; do
  cd "$repository/$folder" # the folder can belong to a nested module
  target=$(echo "${folder#./}" | tr / _)_$name

  # If the compiler does not find the function, it exits with 0 and writes nothing.
  if ! compile_native_go_fuzzer_v2 . "$name" "$target" </dev/null || [ ! -e "$OUT/$target" ]; then
    echo "not built: $name in $folder" >&2
    failed=1
  fi

  # The inputs keep the format of go test. The fuzzer reads them as plain bytes.
  if [ -d "testdata/fuzz/$name" ]; then
    python3 -m zipfile --create "$OUT/${target}_seed_corpus.zip" "testdata/fuzz/$name"/*
  fi
done < <("$repository/deploy/oss-fuzz/targets")
exit $failed
