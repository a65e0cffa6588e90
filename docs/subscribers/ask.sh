#!/usr/bin/env bash
# Ask once over NATS and print the answer.
#
#     ./ask.sh 127.0.0.1 4222 llmgw.v1.default.api.views.status
#     ./ask.sh 127.0.0.1 4222 '$JS.API.STREAM.MSG.GET.LLMGW_default_LOG' '{"seq": 1}'
#
# Needs bash alone. The first asks a controller for a view, the second JetStream for one message.
set -eu
export LC_ALL=C
host=$1 port=$2 subject=$3 question=${4-}
inbox="_INBOX.$$.$RANDOM$RANDOM"

exec 3<>"/dev/tcp/$host/$port"
printf 'CONNECT {"verbose":false,"lang":"bash","version":"1"}\r\nSUB %s 1\r\nPUB %s %s %d\r\n%s\r\n' \
  "$inbox" "$subject" "$inbox" "${#question}" "$question" >&3
while IFS= read -r -t 10 line <&3; do
  set -- ${line%$'\r'}
  case ${1-} in
    PING) printf 'PONG\r\n' >&3 ;;
    -ERR) echo "$line" >&2; exit 1 ;;
    MSG)
      IFS= read -r -N "${!#}" payload <&3
      printf '%s\n' "$payload"
      exit 0 ;;
  esac
done
echo "no answer from $subject" >&2
exit 1
