#!/bin/sh
# Redis's ACL file, on standard output: users.acl with a password for each of its users but `default`.
#
#   users.sh users.acl FOLDER > aclfile      FOLDER/redis_worker, redis_trainer … hold the passwords
#
# Redis keeps their hashes; nothing here is to be kept. A user without a password ends it.
set -eu
rules=$1 folder=$2
sed -e '/^#/d' -e '/^$/d' "$rules" | while read -r first name rest; do
    if [ "$first" = user ]; then
        printf '\nuser %s reset %s' "$name" "$rest"
        [ "$name" = default ] && continue
        file=$folder/redis_$name
        password=$(cat "$file") || exit 1
        if [ ${#password} -lt 16 ]; then
            echo "$file: expected a password of 16 characters or more; see .env" >&2
            exit 1
        fi
        printf ' on #%s' "$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)"
    else
        printf ' %s' "$first $name $rest"
    fi
done
echo
