# What `helm test` runs: a document in, a question, its answer, the document out. Needs TARGET, DOCUMENT, QUESTION, ANSWER.
quilt() { kvquilt --target "$TARGET" "$@"; }
collection="helm-test-$RANDOM$RANDOM"
scratch=$(mktemp -d)

until quilt status; do
  echo "not ready yet"
  sleep 3
done

mkdir "$scratch/documents"
printf '%s' "$DOCUMENT" >"$scratch/documents/document.md"
trap 'quilt delete -c "$collection" --all' EXIT
quilt ingest "$scratch/documents" -c "$collection"
quilt ask "$QUESTION" -c "$collection" --json | tee "$scratch/answer.json"

python - "$ANSWER" "$scratch/answer.json" <<'PYTHON'
import json
import sys

expected, path = sys.argv[1:]
with open(path) as file:
    whole = json.load(file)
text = whole["answers"][0]["text"]
if expected.lower() not in text.lower():
    sys.exit(f"the answer {text!r} does not hold {expected!r}; test.question and test.answer say what is asked and expected")
if not whole["hits"]:
    sys.exit("the answer came from nowhere: no passage was found")
print("as expected:", text)
PYTHON
