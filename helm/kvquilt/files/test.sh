quilt() { kvquilt --target "$TARGET" "$@"; }
collection="helm-test-$RANDOM$RANDOM"

until quilt status; do
  echo "not ready yet"
  sleep 3
done

mkdir /tmp/documents
printf '%s' "$DOCUMENT" >/tmp/documents/document.md
trap 'quilt delete -c "$collection" --all || true' EXIT
quilt ingest /tmp/documents -c "$collection"

quilt ask "$QUESTION" -c "$collection" --json | tee /tmp/answer.json
python - "$ANSWER" /tmp/answer.json <<'PYTHON'
import json, sys
expected, path = sys.argv[1:]
with open(path) as file:
    whole = json.load(file)
text, usage = whole["answers"][0]["text"], whole["usage"]
if expected.lower() not in text.lower():
    sys.exit(f"the answer {text!r} does not hold {expected!r}; test.question and test.answer say what is asked and expected")
print("usage:", usage)
PYTHON
