{{- /* rls.checkLimitsFiles compares the limits files in the values with the JSON Schema of limits files: fields, required
       fields and fixed words. rls check finds all other mistakes. rls skips files of tests. */}}
{{- define "rls.checkLimitsFiles" -}}
{{- $schema := .Files.Get "files/limits-schema.json" | fromJson }}
{{- range $name, $text := .Values.limits }}
{{- if not (hasSuffix "_test.yaml" $name) }}
{{- $limits := fromYaml $text }}
{{- with $limits.Error }}
{{- fail (printf "limits.%s: got no valid YAML, want a limits file: %s" $name .) }}
{{- end }}
{{- include "rls.checkBySchema" (dict "place" (printf "limits.%s" $name) "value" $limits "node" $schema "definitions" (get $schema "$defs")) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* rls.checkBySchema compares a value with a node of the schema. place names the value in errors. */}}
{{- define "rls.checkBySchema" -}}
{{- $place := .place }}{{ $value := .value }}{{ $node := .node }}{{ $definitions := .definitions }}
{{- with get $node "$ref" }}{{ $node = get $definitions (trimPrefix "#/$defs/" .) }}{{ end }}
{{- if kindIs "map" $value }}
{{- range $choice := $node.anyOf }}
{{- with get $choice "$ref" }}{{ $node = get $definitions (trimPrefix "#/$defs/" .) }}{{ end }}
{{- end }}
{{- with $node.properties }}
{{- range $name, $field := $value }}
{{- if not (hasKey $node.properties $name) }}
{{- fail (printf "%s: got the unknown field %q, want one of %s" $place $name (keys $node.properties | sortAlpha | join ", ")) }}
{{- end }}
{{- include "rls.checkBySchema" (dict "place" (printf "%s.%s" $place $name) "value" $field "node" (get $node.properties $name) "definitions" $definitions) }}
{{- end }}
{{- end }}
{{- range $node.required }}
{{- if not (hasKey $value .) }}{{ fail (printf "%s: got no field %s, want one" $place .) }}{{ end }}
{{- end }}
{{- else if kindIs "slice" $value }}
{{- with $node.items }}
{{- range $i, $item := $value }}
{{- include "rls.checkBySchema" (dict "place" (printf "%s[%d]" $place $i) "value" $item "node" $node.items "definitions" $definitions) }}
{{- end }}
{{- end }}
{{- else if and $node.enum (not (has $value $node.enum)) }}
{{- fail (printf "%s: got %v, want one of %s" $place $value (compact $node.enum | join ", ")) }}
{{- end }}
{{- end }}
