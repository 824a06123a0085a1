#!/bin/sh
# A fake kubectl with three jobs, each with a pod of stage 0: the pod of `small` runs, that of `ended` has succeeded,
# and that of `pending` is pending. A created job gets the name `made` and has failed with exit code 74.
job() { echo '{"metadata": {"name": "'"$1"'", "uid": "'"$1"'"}, "spec": {"storage": {"path": "jobs/'"$1"'"}}}'; }
pods() {
    echo '{"items": [{"metadata": {"name": "'"$1"'-0-1", "labels": {"stagecoach.dev/stage": "0", "stagecoach.dev/attempt": "1"}},
        "status": {"phase": "'"$2"'"}}]}'
}
case "$*" in
    *"get pipelinejobs.stagecoach.dev small"*) job small ;;
    *"get pipelinejobs.stagecoach.dev ended"*) job ended ;;
    *"get pipelinejobs.stagecoach.dev pending"*) job pending ;;
    *"get pods --selector stagecoach.dev/job-uid=small"*) pods small Running ;;
    *"get pods --selector stagecoach.dev/job-uid=ended"*) pods ended Succeeded ;;
    *"get pods --selector stagecoach.dev/job-uid=pending"*) pods pending Pending ;;
    *"logs small-0-1"*) echo 'the live page, after this: http://127.0.0.1:9091/token/' ;;
    *"port-forward --address=127.0.0.1 small-0-1 :9091") echo 'Forwarding from 127.0.0.1:4567 -> 9091' ;;
    *"exec small-0-1"*) echo "$@" ;;
    *"get pipelinejobs.stagecoach.dev made"*)
        echo '{"metadata": {"name": "made", "uid": "made"}, "status": {"phase": "Failed", "lastFailure": {"reason": "Storage", "exitCode": 74, "logTail": "step 7 differs"}}}' ;;
    *"get pods --selector stagecoach.dev/job-uid=made"*) pods made Failed ;;
    *"create --filename -"*) sed 's/"generateName": *"[^"]*"/"name": "made", "uid": "made"/' ;;
    *"logs made-0-1"*) echo '2026-09-21T14:00:00.1Z step 7 differs' ;;
    *"delete pipelinejobs.stagecoach.dev made --wait=false --ignore-not-found"*) ;;
    *) echo "unexpected: $*" >&2; exit 1 ;;
esac
