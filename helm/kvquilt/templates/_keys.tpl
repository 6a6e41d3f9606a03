{{- /* An API key as shared/principals/keys.py makes it, for the first administrator: kvq_ID_SECRET with a checksum. A test compares. */ -}}
{{- define "kvquilt.newKey" -}}
{{- $body := printf "kvq_%s_%s" (randAlphaNum 12) (randAlphaNum 40) -}}
{{- print $body (include "kvquilt.keyChecksum" $body) -}}
{{- end -}}

{{- /* CRC-32 as six characters in base 62. Templates know no XOR: numbers are lists of hexadecimal digits, and two digits a place in a table. */ -}}
{{- define "kvquilt.keyChecksum" -}}
{{- $value := dict -}}
{{- range $i, $digit := splitList "" "0123456789abcdef" }}{{ $_ := set $value $digit $i }}{{ end -}}
{{- $xor := print "0123456789abcdef" "1032547698badcfe" "23016745ab89efcd" "32107654ba98fedc" "45670123cdef89ab" "54761032dcfe98ba"
      "67452301efcdab89" "76543210fedcba98" "89abcdef01234567" "98badcfe10325476" "ab89efcd23016745" "ba98fedc32107654"
      "cdef89ab45670123" "dcfe98ba54761032" "efcdab8967452301" "fedcba9876543210" -}}
{{- $table := list "00000000" "1db71064" "3b6e20c8" "26d930ac" "76dc4190" "6b6b51f4" "4db26158" "5005713c"
      "edb88320" "f00f9344" "d6d6a3e8" "cb61b38c" "9b64c2b0" "86d3d2d4" "a00ae278" "bdbdf21c" -}}
{{- $crc := splitList "" "ffffffff" -}}
{{- $text := splitList "" (printf "%x" .) -}}
{{- range $place := until (len $text) -}}
{{- $nibble := index $text (ternary (add $place 1) (sub $place 1) (eq (mod $place 2) 0) | int) -}}
{{- $row := index $value (substr (index $value (last $crc) | mul 16 | add (index $value $nibble) | int) (index $value (last $crc) | mul 16 | add (index $value $nibble) | add 1 | int) $xor) -}}
{{- $shifted := prepend (initial $crc) "0" -}}
{{- $next := list -}}
{{- range $i, $digit := splitList "" (index $table $row) -}}
{{- $at := index $value (index $shifted $i) | mul 16 | add (index $value $digit) | int -}}
{{- $next = append $next (substr $at (add $at 1 | int) $xor) -}}
{{- end -}}
{{- $crc = $next -}}
{{- end -}}
{{- $sum := 0 -}}
{{- range $crc }}{{ $sum = index $value . | sub 15 | add (mul $sum 16) }}{{ end -}}
{{- $alphabet := "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" -}}
{{- $characters := "" -}}
{{- range until 6 -}}
{{- $at := mod $sum 62 | int -}}
{{- $characters = print (substr $at (add $at 1 | int) $alphabet) $characters -}}
{{- $sum = div $sum 62 -}}
{{- end -}}
{{- $characters -}}
{{- end -}}
